"""Integrations with other packages: training callbacks, and adapters to their interfaces, one module for each
package.
"""
