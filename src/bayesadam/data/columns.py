"""Names of features, targets and classes."""

BOSTON = "CRIM ZN INDUS CHAS NOX RM AGE DIS RAD TAX PTRATIO B LSTAT".split()
CONCRETE = "cement,slag,fly ash,water,superplasticizer,coarse aggregate,fine aggregate,age".split(",")
ENERGY = (
    "relative compactness,surface area,wall area,roof area,overall height,orientation,glazing area,"
    "glazing area distribution"
).split(",")
KIN8NM = [f"theta{i}" for i in range(1, 9)]
NAVAL = (
    "lever position,ship speed,gas turbine shaft torque,gas turbine revolutions,gas generator revolutions,"
    "starboard propeller torque,port propeller torque,HP turbine exit temperature,GT compressor inlet temperature,"
    "GT compressor outlet temperature,HP turbine exit pressure,GT compressor inlet pressure,"
    "GT compressor outlet pressure,GT exhaust gas pressure,turbine injection control,fuel flow"
).split(",")
POWER = "temperature,exhaust vacuum,ambient pressure,relative humidity".split(",")
PROTEIN = [f"F{i}" for i in range(1, 10)]
WINE = (
    "fixed acidity,volatile acidity,citric acid,residual sugar,chlorides,free sulfur dioxide,total sulfur dioxide,"
    "density,pH,sulphates,alcohol"
).split(",")
YACHT = (
    "longitudinal position,prismatic coefficient,length-displacement ratio,beam-draught ratio,length-beam ratio,"
    "Froude number"
).split(",")

JURA = "Xloc Yloc Landuse Rock".split()
METALS = "Cd Co Cr Cu Ni Pb Zn".split()
SARCOS = [f"{kind}{i}" for kind in ("position", "velocity", "acceleration") for i in range(1, 8)]
TORQUES = [f"torque{i}" for i in range(1, 8)]

MUSHROOM = (
    "cap-shape cap-surface cap-color bruises odor gill-attachment gill-spacing gill-size gill-color stalk-shape "
    "stalk-root stalk-surface-above-ring stalk-surface-below-ring stalk-color-above-ring stalk-color-below-ring "
    "veil-type veil-color ring-number ring-type spore-print-color population habitat"
).split()
ADULT = (
    "age workclass fnlwgt education education-num marital-status occupation relationship race sex capital-gain "
    "capital-loss hours-per-week native-country income"
).split()
ADULT_NUMBERS = "age fnlwgt education-num capital-gain capital-loss hours-per-week".split()
COVERTYPE = (
    "Elevation Aspect Slope Horizontal_Distance_To_Hydrology Vertical_Distance_To_Hydrology "
    "Horizontal_Distance_To_Roadways Hillshade_9am Hillshade_Noon Hillshade_3pm Horizontal_Distance_To_Fire_Points"
).split()
COVERTYPE += [f"Wilderness_Area{i}" for i in range(1, 5)] + [f"Soil_Type{i}" for i in range(1, 41)]

DIGITS = list("0123456789")
CLOTHES = "T-shirt/top,trouser,pullover,dress,coat,sandal,shirt,sneaker,bag,ankle boot".split(",")
TREES = "spruce/fir,lodgepole pine,ponderosa pine,cottonwood/willow,aspen,Douglas-fir,krummholz".split(",")
RADIATOR = "Rad Flow,Fpv Close,Fpv Open,High,Bypass,Bpv Close,Bpv Open".split(",")
